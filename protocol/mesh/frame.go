package mesh

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

const (
	// nonceBytes is the entropy of a frame's nonce.
	nonceBytes = 16
	// minNonceChars and maxNonceChars bound a nonce that a caller brings.
	minNonceChars = 16
	maxNonceChars = 64
	// maxLabelChars bounds what a frame says about its content.
	maxLabelChars = 80

	frameOpen  = "<<<MESH_DATA "
	frameClose = "<<<END_MESH_DATA "
	frameTail  = ">>>"
)

// NewNonce returns an unpredictable nonce for the frames of one message.
func NewNonce() string {
	var b [nonceBytes]byte
	// crypto/rand does not fail; it ends the process if the system has no randomness.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Frame wraps text that is data and not instruction, and returns how many markers
// in it had to be defused. The text cannot close the frame: it does not know the
// nonce (one from NewNonce per message, for all its frames), and delimiters in it
// are defused. A nonce that is not 16 to 64 letters or digits is replaced by a
// fresh one. The label says what the data is; it is cleaned and cut. Undefuse
// of what stands between the delimiter lines is the text, byte for byte.
func Frame(nonce, label, text string) (framed string, forged int) {
	if !validNonce(nonce) {
		nonce = NewNonce()
	}
	head := nonce
	if label = frameLabel(label); label != "" {
		head += " " + label
	}
	data, forged := Defuse(text)
	return frameOpen + head + frameTail + "\n" + data + "\n" + frameClose + nonce + frameTail + "\n", forged
}

// WithoutFrames is a text without the frames in it whose label begins so, as somebody writes
// them who repeats what was framed for them. Half of one stays.
func WithoutFrames(text, label string) string {
	var out strings.Builder
	for {
		before, rest, found := cutLine(text, frameOpen)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		head, body, _ := strings.Cut(rest, frameTail+"\n")
		nonce, about, _ := strings.Cut(head, " ")
		end := frameClose + nonce + frameTail
		at := strings.Index("\n"+body, "\n"+end)
		if !validNonce(nonce) || !strings.HasPrefix(about, label) || at < 0 {
			out.WriteString(frameOpen)
			text = rest
			continue
		}
		text = strings.TrimPrefix(body[at+len(end):], "\n")
	}
}

// cutLine cuts a text around the first place where a line begins with a word.
func cutLine(text, word string) (before, after string, found bool) {
	if after, found = strings.CutPrefix(text, word); found {
		return "", after, true
	}
	before, after, found = strings.Cut(text, "\n"+word)
	if found {
		before += "\n"
	}
	return before, after, found
}

func validNonce(nonce string) bool {
	if len(nonce) < minNonceChars || len(nonce) > maxNonceChars {
		return false
	}
	for i := 0; i < len(nonce); i++ {
		if !isAlnum(nonce[i]) {
			return false
		}
	}
	return true
}

// frameLabel makes a label that stays on its line and within its delimiter.
func frameLabel(s string) string {
	s = strings.Map(func(r rune) rune {
		switch r {
		case '<', '>', '＜', '＞', '[', ']':
			return '_'
		}
		return r
	}, CleanLine(s))
	s, _ = Defuse(cutChars(s, maxLabelChars))
	return s
}
