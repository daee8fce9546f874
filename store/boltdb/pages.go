package boltdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The file format of bbolt (version 2), as far as verifying needs it. Numbers have
// the machine's byte order.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHeaderBytes   = 16 // id uint64, flags uint16, count uint16, overflow uint32
	elementBytes      = 16 // leaf: flags, pos, ksize, vsize uint32; branch: pos, ksize uint32, page uint64
	bucketHeaderBytes = 16 // root uint64, sequence uint64
	metaBytes         = 64 // with the checksum, which covers the first 56

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10
	bucketFlag   = 0x01 // of a leaf element

	noFreelist = ^uint64(0)

	minPageSize, maxPageSize = 1 << 10, 16 << 20
	// maxDepth bounds the height of the trees inside of each other: even with two keys
	// per page this is more than a file can hold.
	maxDepth = 100
)

var order = binary.NativeEndian

// fileMeta is a valid meta page.
type fileMeta struct {
	pageSize             int
	root, freelist, high uint64 // page ids; high is the first id never used
	txid                 uint64
}

// verifyFile checks that every page of a database file that can be reached is there
// and well-formed, with plain reads: a damaged file makes bbolt panic or fault, in
// goroutines where nobody can recover. It returns a *CorruptError.
func verifyFile(f *os.File) error {
	fi, err := f.Stat()
	if err == nil {
		err = verifyPages(f, fi.Size())
	}
	if err != nil {
		return &CorruptError{Path: f.Name(), Err: err}
	}
	return nil
}

// verifyPages checks a database of size bytes.
func verifyPages(r io.ReaderAt, size int64) error {
	m, err := readMeta(r, size)
	if err != nil {
		return err
	}
	if uint64(size)/uint64(m.pageSize) < m.high {
		return fmt.Errorf("file of %d bytes is cut short, it had %d pages of %d bytes", size, m.high, m.pageSize)
	}
	v := verifier{r: r, meta: m, seen: make([]uint64, m.high/64+1)}
	if m.freelist != noFreelist {
		if err := v.freelist(); err != nil {
			return err
		}
	}
	return v.tree(m.root, nil, nil, 0)
}

// readMeta returns the newer of the two valid meta pages. The second is found
// without knowing the page size by looking everywhere it may be, like bbolt does.
func readMeta(r io.ReaderAt, size int64) (fileMeta, error) {
	if size == 0 {
		return fileMeta{}, errors.New("file is empty")
	}
	best, found := metaAt(r, 0)
	for pos := int64(minPageSize); pos <= maxPageSize && pos < size; pos *= 2 {
		m, ok := metaAt(r, pos)
		if ok && int64(m.pageSize) == pos && (!found || m.txid > best.txid) {
			best, found = m, true
		}
		if found && pos >= int64(best.pageSize) {
			break
		}
	}
	if !found {
		return fileMeta{}, errors.New("not a database, or both of its head pages are lost")
	}
	return best, nil
}

// metaAt reads the meta page at pos, and tells whether it is valid.
func metaAt(r io.ReaderAt, pos int64) (fileMeta, bool) {
	var b [metaBytes]byte
	if _, err := r.ReadAt(b[:], pos+pageHeaderBytes); err != nil {
		return fileMeta{}, false
	}
	sum := fnv.New64a()
	sum.Write(b[:56])
	m := fileMeta{
		pageSize: int(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]),
		freelist: order.Uint64(b[32:]),
		high:     order.Uint64(b[40:]),
		txid:     order.Uint64(b[48:]),
	}
	ok := order.Uint32(b[0:]) == boltMagic && order.Uint32(b[4:]) == boltVersion && order.Uint64(b[56:]) == sum.Sum64() &&
		m.pageSize >= minPageSize && m.pageSize <= maxPageSize && m.pageSize&(m.pageSize-1) == 0
	return m, ok
}

// verifier walks the pages of one file.
type verifier struct {
	r    io.ReaderAt
	meta fileMeta
	seen []uint64 // a bit per page
	pool [][]byte // idle buffers of one page, no more than the walk is deep
}

// page is a page in memory with its overflow, or the inline page of a bucket.
type page struct {
	id     uint64
	bucket []byte // name of the bucket that is inline on page id; nil for a real page
	buf    []byte
	flags  uint16
	count  int
}

func newPage(id uint64, bucket, buf []byte) page {
	return page{id: id, bucket: bucket, buf: buf, flags: order.Uint16(buf[8:]), count: int(order.Uint16(buf[10:]))}
}

func (p page) String() string {
	if p.bucket != nil {
		return fmt.Sprintf("bucket %q on page %d", p.bucket, p.id)
	}
	return fmt.Sprintf("page %d", p.id)
}

// load reads a page, and marks it and its overflow as seen.
func (v *verifier) load(id uint64) (page, error) {
	size := v.meta.pageSize
	if id < 2 || id >= v.meta.high {
		return page{}, fmt.Errorf("page %d does not exist", id)
	}
	buf := v.buffer()
	if _, err := v.r.ReadAt(buf, int64(id)*int64(size)); err != nil {
		return page{}, fmt.Errorf("read page %d: %w", id, err)
	}
	if got := order.Uint64(buf); got != id {
		return page{}, fmt.Errorf("page %d says that it is page %d", id, got)
	}
	overflow := uint64(order.Uint32(buf[12:]))
	if overflow >= v.meta.high-id {
		return page{}, fmt.Errorf("page %d goes on beyond the end", id)
	}
	for i := id; i <= id+overflow; i++ {
		if err := v.see(i); err != nil {
			return page{}, err
		}
	}
	if overflow > 0 {
		big := make([]byte, int(overflow+1)*size)
		copy(big, buf)
		v.release(buf)
		buf = big
		if _, err := v.r.ReadAt(buf[size:], int64(id+1)*int64(size)); err != nil {
			return page{}, fmt.Errorf("read rest of page %d: %w", id, err)
		}
	}
	return newPage(id, nil, buf), nil
}

// see marks a page, which may have one use only.
func (v *verifier) see(id uint64) error {
	if v.seen[id/64]&(1<<(id%64)) != 0 {
		return fmt.Errorf("page %d is used twice", id)
	}
	v.seen[id/64] |= 1 << (id % 64)
	return nil
}

func (v *verifier) buffer() []byte {
	if n := len(v.pool); n > 0 {
		b := v.pool[n-1]
		v.pool = v.pool[:n-1]
		return b
	}
	return make([]byte, v.meta.pageSize)
}

func (v *verifier) release(buf []byte) {
	if len(buf) == v.meta.pageSize {
		v.pool = append(v.pool, buf)
	}
}

// tree checks the tree below a page. Its keys must be ≥ low and < high; nil is open.
func (v *verifier) tree(id uint64, low, high []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d is nested too deeply", id)
	}
	p, err := v.load(id)
	if err != nil {
		return err
	}
	defer v.release(p.buf)
	return v.elements(p, low, high, depth)
}

// elements checks the content of a branch or leaf page.
func (v *verifier) elements(p page, low, high []byte, depth int) error {
	if p.flags != branchFlag && p.flags != leafFlag {
		return fmt.Errorf("%s has type %#x instead of leaf or branch", p, p.flags)
	}
	if pageHeaderBytes+p.count*elementBytes > len(p.buf) {
		return fmt.Errorf("%s claims %d elements", p, p.count)
	}
	if p.flags == branchFlag && p.count == 0 {
		return fmt.Errorf("%s is an empty branch", p)
	}
	for i := range p.count {
		e, err := p.element(i)
		if err != nil {
			return err
		}
		if low != nil && (bytes.Compare(e.key, low) < 0 || i > 0 && bytes.Equal(e.key, low)) {
			return fmt.Errorf("%s: key %d is out of order", p, i)
		}
		if high != nil && bytes.Compare(e.key, high) >= 0 {
			return fmt.Errorf("%s: key %d belongs elsewhere", p, i)
		}
		low = e.key
		switch {
		case p.flags == branchFlag:
			next := high
			if i+1 < p.count {
				n, err := p.element(i + 1)
				if err != nil {
					return err
				}
				next = n.key
			}
			err = v.tree(e.child, e.key, next, depth+1)
		case e.flags&bucketFlag != 0 && p.bucket != nil:
			// bbolt never makes these. Nested in overlapping elements, a small page
			// could unfold to an endless tree.
			err = fmt.Errorf("%s holds a bucket although it is inline", p)
		case e.flags&bucketFlag != 0:
			err = v.bucket(p, e, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// element is one entry of a page.
type element struct {
	key, value []byte
	flags      uint32 // of a leaf
	child      uint64 // of a branch
}

// element returns entry i, checked to lie inside of the page.
func (p page) element(i int) (element, error) {
	at := pageHeaderBytes + i*elementBytes
	b := p.buf[at:]
	var e element
	var pos, ksize, vsize uint64
	if p.flags == branchFlag {
		pos, ksize, e.child = uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint64(b[8:])
	} else {
		e.flags = order.Uint32(b)
		pos, ksize, vsize = uint64(order.Uint32(b[4:])), uint64(order.Uint32(b[8:])), uint64(order.Uint32(b[12:]))
	}
	if pos < elementBytes || pos+ksize+vsize > uint64(len(b)) {
		return e, fmt.Errorf("%s: element %d lies outside", p, i)
	}
	e.key, e.value = b[pos:pos+ksize], b[pos+ksize:pos+ksize+vsize]
	return e, nil
}

// bucket checks a bucket inside of a page: its tree, or its inline page.
func (v *verifier) bucket(p page, e element, depth int) error {
	if len(e.value) < bucketHeaderBytes {
		return fmt.Errorf("%s: bucket %q has no head", p, e.key)
	}
	if root := order.Uint64(e.value); root != 0 {
		return v.tree(root, nil, nil, depth)
	}
	inline := e.value[bucketHeaderBytes:]
	if len(inline) < pageHeaderBytes {
		return fmt.Errorf("%s: bucket %q has no page", p, e.key)
	}
	in := newPage(p.id, e.key, inline)
	if in.flags != leafFlag {
		return fmt.Errorf("%s has type %#x inline", in, in.flags)
	}
	return v.elements(in, nil, nil, depth)
}

// freelist checks the list of free pages that other programs store in the file.
func (v *verifier) freelist() error {
	p, err := v.load(v.meta.freelist)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	defer v.release(p.buf)
	if p.flags != freelistFlag {
		return fmt.Errorf("%s has type %#x instead of free list", p, p.flags)
	}
	ids := p.buf[pageHeaderBytes:]
	count := uint64(p.count)
	if count == 0xFFFF { // more than that: the first entry is the count
		count, ids = order.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return fmt.Errorf("%s claims %d free pages", p, count)
	}
	for i := range count {
		id := order.Uint64(ids[8*i:])
		if id < 2 || id >= v.meta.high {
			return fmt.Errorf("%s: page %d does not exist", p, id)
		}
		if err := v.see(id); err != nil { // bbolt would overwrite a page in use
			return err
		}
	}
	return nil
}
