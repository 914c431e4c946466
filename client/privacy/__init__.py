"""What a site tells under a privacy budget: everything with noise, counted, and nothing once the budget is used up."""
