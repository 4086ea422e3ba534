"""What a user wants to run, and the exact gang of one attempt made from it. Pure: documents in, documents out."""
