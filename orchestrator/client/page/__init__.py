"""A run as a page: the documents it is drawn from, the report file, and the parts of the page itself."""
