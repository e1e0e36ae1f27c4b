"""What tests share: models, doubles, files, pages, requests, forks. No test is in here."""
