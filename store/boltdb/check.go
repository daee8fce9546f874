package boltdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// MaxProblems bounds what Check reports; it stops looking at records after that.
const MaxProblems = 1000

// Problem is one finding of Check.
type Problem struct {
	// Bucket is the path of bucket names and Key the key of a bad record; both empty
	// for damage of the file's pages.
	Bucket []string
	Key    []byte
	Text   string
}

func (p Problem) String() string {
	if p.Bucket == nil {
		return p.Text
	}
	return fmt.Sprintf("%s %q: %s", strings.Join(p.Bucket, "/"), p.Key, p.Text)
}

// Validator judges one record. The slices are valid during the call only.
type Validator func(bucket []string, key, value []byte) error

// Check verifies the closed database cfg.Path without changing it: all pages, kind
// and schema, and each record if validate is not nil. Damage is in the problems;
// an error means that Check could not look: *LockedError, *KindError,
// *NewerSchemaError, no such file, the end of ctx.
func Check(ctx context.Context, cfg Config, validate Validator) ([]Problem, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.ReadOnly = true
	b, err := openBolt(cfg, time.Now().Add(cfg.LockTimeout))
	if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
		return []Problem{{Text: corrupt.Err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	c := checker{ctx: ctx, validate: validate}
	err = b.View(func(tx *bolt.Tx) error {
		if err := identify(tx, cfg, nil); err != nil {
			return err
		}
		for err := range tx.Check() {
			c.report(Problem{Text: err.Error()})
		}
		if validate == nil {
			return nil
		}
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if string(name) == metaBucket {
				return nil
			}
			return c.bucket([]string{string(name)}, b)
		})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return c.problems, errors.Join(err, b.Close())
}

// errEnough ends a check that found MaxProblems.
var errEnough = errors.New("too many problems")

// checker goes through the records of one file.
type checker struct {
	ctx      context.Context
	validate Validator
	problems []Problem
}

// report keeps a problem unless there are enough of them.
func (c *checker) report(p Problem) bool {
	if len(c.problems) < MaxProblems {
		c.problems = append(c.problems, p)
	}
	return len(c.problems) < MaxProblems
}

// bucket validates the records of a bucket and of those inside of it.
func (c *checker) bucket(path []string, b *bolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if v == nil {
			return c.bucket(append(path[:len(path):len(path)], string(k)), b.Bucket(k))
		}
		if err := c.record(path, k, v); err != nil {
			if !c.report(Problem{Bucket: path, Key: append([]byte{}, k...), Text: err.Error()}) {
				return errEnough
			}
		}
		return nil
	})
}

// record validates one record; a panic counts as a finding.
func (c *checker) record(path []string, k, v []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("validation panicked: %v", p)
		}
	}()
	return c.validate(path, k, v)
}
