"""What a site may say about itself before training, one file each."""
