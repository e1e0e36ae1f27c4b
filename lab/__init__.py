"""What is measured and trained with the product, and is no part of it: study, benchmark, training."""
