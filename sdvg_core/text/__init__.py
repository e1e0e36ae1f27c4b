"""Turn a prompt into the text embedding that Wan 2.1 is conditioned on."""
