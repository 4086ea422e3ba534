"""A gang of numpy ranks that trains a character language model; shipped so that ``rerail drill`` finds its work."""  # noqa: N999
