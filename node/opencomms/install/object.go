package install

import (
	"bytes"
	"encoding/json"
)

// object is a table of a configuration, in the order in which it is written. Its
// values are strings, bools, lists of strings and further objects.
type object []field

type field struct {
	key   string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, v := range []any{f.key, f.value} {
			if j > 0 {
				b.WriteByte(':')
			}
			text, err := marshal(v)
			if err != nil {
				return nil, err
			}
			b.Write(text)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// lookup is what stands at a path of decoded tables.
func lookup(tree map[string]any, path []string) (any, bool) {
	var v any = tree
	for _, key := range path {
		table, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = table[key]; !ok {
			return nil, false
		}
	}
	return v, true
}
