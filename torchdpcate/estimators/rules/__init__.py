"""Treatment rules by weighted empirical risk minimisation."""
