package tunnel

import (
	"bufio"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
)

// The frames of RFC 6455, section 5, as far as a tunnel has them: binary messages,
// and the control frames.

const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10

	// wsHeaderMax is the longest frame header, in bytes.
	wsHeaderMax = 14
	// maxControl is the longest payload of a control frame, in bytes.
	maxControl = 125
)

// frameHead is the header of a frame.
type frameHead struct {
	op     byte
	fin    bool
	masked bool
	key    maskKey
	length uint64 // of the payload, in bytes
}

var (
	errReserved = errors.New("a reserved bit is set")
	errLength   = errors.New("a length is out of range")
	errControl  = errors.New("a control frame is too long, or in pieces")
)

// readFrameHead reads a header and checks what does not depend on who sent it.
func readFrameHead(r *bufio.Reader) (h frameHead, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	h.fin, h.op = b[0]&0x80 != 0, b[0]&0x0f
	h.masked, h.length = b[1]&0x80 != 0, uint64(b[1]&0x7f)
	if b[0]&0x70 != 0 {
		return h, errReserved
	}
	switch h.length {
	case 126:
		_, err = io.ReadFull(r, b[:2])
		h.length = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		_, err = io.ReadFull(r, b[:8])
		h.length = binary.BigEndian.Uint64(b[:])
	}
	if err == nil && h.masked {
		_, err = io.ReadFull(r, h.key[:])
	}
	switch {
	case err != nil:
		return h, err
	case h.length > 1<<63-1:
		return h, errLength
	case h.op >= opClose && (h.length > maxControl || !h.fin):
		return h, errControl
	}
	return h, nil
}

// appendFrame appends a whole message to dst, masked with a key of its own if mask is
// set.
func appendFrame(dst []byte, op byte, payload []byte, mask bool) []byte {
	bit := byte(0)
	if mask {
		bit = 0x80
	}
	dst = append(dst, 0x80|op)
	switch n := len(payload); {
	case n <= 125:
		dst = append(dst, bit|byte(n))
	case n <= 1<<16-1:
		dst = binary.BigEndian.AppendUint16(append(dst, bit|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, bit|127), uint64(n))
	}
	if !mask {
		return append(dst, payload...)
	}
	var key maskKey
	_, _ = rand.Read(key[:]) // never fails
	dst = append(dst, key[:]...)
	start := len(dst)
	dst = append(dst, payload...)
	key.apply(dst[start:])
	return dst
}

// maskKey is the key of a frame, turned to the byte of the payload that is next.
type maskKey [4]byte

// apply masks or unmasks the next bytes of the payload.
func (k *maskKey) apply(b []byte) {
	left := b
	if len(left) >= 64 {
		var repeated [512]byte
		for i := 0; i < min(len(left), len(repeated)); i += 4 {
			*(*maskKey)(repeated[i:]) = *k
		}
		for len(left) >= 4 {
			n := subtle.XORBytes(left, left, repeated[:min(len(left)&^3, len(repeated))])
			left = left[n:]
		}
	}
	for i := range left {
		left[i] ^= k[i&3]
	}
	turned := *k
	for i := range turned {
		turned[i] = k[(i+len(left))&3]
	}
	*k = turned
}
