"""What things cost, measured; each module runs on its own."""
