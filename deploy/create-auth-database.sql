-- Users and permissions of MLflow's server; its tables are made by the server.
create database mlflow_auth owner mlflow;
