-- Users and permissions of MLflow's server; the server creates the tables.
create database mlflow_auth owner mlflow;
