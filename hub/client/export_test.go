package client

import (
	"net/http"
	"time"
)

// Hasten makes a client wait as briefly as a test can bear.
func (c *Client) Hasten(silence time.Duration) {
	c.pace = pace{poll: time.Second, backoffMin: 2 * time.Millisecond, backoffMax: 5 * time.Millisecond, silence: silence}
}

// Via sends a client's requests another way.
func (c *Client) Via(rt http.RoundTripper) { c.hc = &http.Client{Transport: rt} }

// Tries is how often a call is made that may be repeated.
const Tries = tries

// AnswerTimeout is how long a service may take to begin its answer; 0: for ever.
func (s *Service) AnswerTimeout() time.Duration { return s.transport.ResponseHeaderTimeout }
