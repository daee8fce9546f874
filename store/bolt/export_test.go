package bolt

// Queued is how many changes wait for the writer.
func (s *Store) Queued() int { return s.db.Status().Queue }
