"""Fault catalogues as packaged YAML: codes, buckets, scopes, our actions and where each row comes from."""
