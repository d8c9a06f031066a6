"""What several frontends of one server know together: each asks the others through their launcher."""
