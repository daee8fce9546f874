package spool

const childJob = "MESH_TEST_SPOOL_CHILD"

func child(job string) {}
