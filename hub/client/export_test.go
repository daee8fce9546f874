package client

import "time"

// Hasten makes a client wait as briefly as a test can bear.
func (c *Client) Hasten(silence time.Duration) {
	c.pace = pace{poll: time.Second, backoffMin: 2 * time.Millisecond, backoffMax: 5 * time.Millisecond, silence: silence}
}

// Tries is how often a call is made that may be repeated.
const Tries = tries
