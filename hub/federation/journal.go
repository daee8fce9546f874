package federation

import (
	"sync"

	"opencode-mesh/protocol/api"
)

// journal knows where the records of queries are: it numbers them and finds one by its id.
// It does no I/O, so nobody waits in it for the disk. Safe for concurrent use.
type journal struct {
	mu sync.Mutex // guards the following
	// next is the number of the next record, 0 before the records were read.
	next    uint64
	numbers map[string]uint64             // by id
	ids     [api.MaxContextQueries]string // by number, for those that are forgotten
}

// read reports whether the records were read.
func (j *journal) read() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next > 0
}

// fill takes the records that are stored, in any order.
func (j *journal) fill(list []entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next, j.numbers, j.ids = 1, map[string]uint64{}, [api.MaxContextQueries]string{}
	for _, e := range list {
		j.put(e.Record.ID, e.Number)
		j.next = max(j.next, e.Number+1)
	}
}

// put notes a number, in the place of the one whose record it replaces. Called with mu.
func (j *journal) put(id string, number uint64) {
	place := number % api.MaxContextQueries
	delete(j.numbers, j.ids[place])
	j.numbers[id], j.ids[place] = number, id
}

// take gives a new record its number.
func (j *journal) take(id string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	number := j.next
	j.next++
	j.put(id, number)
	return number
}

// number is that of a record, false where there is none any more.
func (j *journal) number(id string) (uint64, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, ok := j.numbers[id]
	return n, ok
}

// last is the newest number, 0 where there is none.
func (j *journal) last() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}
