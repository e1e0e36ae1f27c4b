"""Files on disk: reading small files safely, writing outputs all or nothing, locks, pictures and mp4."""
