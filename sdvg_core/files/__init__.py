"""Files on disk: safe reading of small files, atomic outputs, locks, pictures, clips and mp4."""
