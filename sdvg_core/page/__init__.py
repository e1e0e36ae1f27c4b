"""A folder of videos, or a study, as one page that opens from disk without a server."""
