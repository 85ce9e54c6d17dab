"""One composition of Gaussian events on all records: the public plan, its private steps, and what follows for free."""
