package peers

// Ack is the final acknowledgement of a message, sent to its sender. From and To are
// those of the message.
type Ack struct {
	MessageID      string  `json:"messageId"`
	FromEndpoint   string  `json:"fromEndpointId"`
	ToEndpoint     string  `json:"toEndpointId"`
	Status         string  `json:"status"`
	AcknowledgedAt float64 `json:"acknowledgedAt"` // Unix milliseconds, finite
}

// ReadAck reads the body of a final acknowledgement. The error is ErrJSON or wraps
// ErrShape.
func ReadAck(body []byte) (Ack, error) {
	o, err := readObject(body)
	if err != nil {
		return Ack{}, err
	}
	if !o.is("version", 2) {
		return Ack{}, shape("version is not 2")
	}
	var a Ack
	var ok bool
	if a.MessageID, ok = o.some("messageId"); !ok {
		return Ack{}, shape("messageId is missing")
	}
	if a.FromEndpoint, ok = o.some("fromEndpointId"); !ok {
		return Ack{}, shape("fromEndpointId is missing")
	}
	if a.ToEndpoint, ok = o.some("toEndpointId"); !ok {
		return Ack{}, shape("toEndpointId is missing")
	}
	if a.Status, ok = o.text("status"); !ok || !Final(a.Status) {
		return Ack{}, shape("status is none of a final acknowledgement")
	}
	if a.AcknowledgedAt, ok = o.finite("acknowledgedAt"); !ok {
		return Ack{}, shape("acknowledgedAt is no number")
	}
	return a, nil
}

// Encode makes the body of the acknowledgement, and its form in records.
func (a Ack) Encode() []byte {
	return encode(struct {
		Version int `json:"version"`
		Ack
	}{2, a})
}
