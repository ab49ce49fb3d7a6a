"""Whether what must be flat is, while jobs come and go and nodes leave and return."""
