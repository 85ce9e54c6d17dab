"""The families of tasks: what each builds, measures, draws and writes for the curator."""
