"""When, in Argo: Hera templates over the plugins. Imports plugins and policies; nothing imports it."""
