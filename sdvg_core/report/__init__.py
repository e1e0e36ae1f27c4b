"""What a run did: the report, its JSON, its picture, and progress on a terminal."""
