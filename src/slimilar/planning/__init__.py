"""What could be removed, at what cost: cost model, budgets, plan."""
