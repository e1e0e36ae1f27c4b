"""What a run did: the report, its JSON, its pictures and its progress on a terminal."""
