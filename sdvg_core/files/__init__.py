"""Files on disk: small ones read safely, outputs written whole, locks, pictures and mp4."""
