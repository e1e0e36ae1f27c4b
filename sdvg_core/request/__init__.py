"""One video as asked for, and what models make of it."""
