"""A folder of videos as one page that opens from disk without a server."""
