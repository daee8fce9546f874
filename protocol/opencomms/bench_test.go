package opencomms_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/opencomms"
)

// benchContent is the size of a message in the benchmarks, in bytes.
const benchContent = 1 << 10

// bigState is a state with messages in channels of members each.
func bigState(tb testing.TB, messages, channels, members int) []byte {
	tb.Helper()
	s := opencomms.New()
	var names []string
	for i := range channels {
		c := newChannel(fmt.Sprintf("channel-%d", i))
		for k := range members {
			c.Members = append(c.Members, newMember(fmt.Sprintf("sess_%012d%012d", i, k), fmt.Sprintf("Role %d", k)))
		}
		s.Channels.Set(c.Name, c)
		names = append(names, c.Name)
	}
	line := strings.Repeat("All work and no play. ", 4) + "\n"
	content := strings.Repeat(line, benchContent/len(line)+1)[:benchContent]
	for i := range messages {
		c, _ := s.Channels.Get(names[i%channels])
		from, to := c.Members[i%members], c.Members[(i+1)%members]
		e := &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{
			ID: opencomms.NewID(opencomms.PrefixMessage), ChannelID: c.ID,
			Sender: from.SessionID, SenderRole: from.Role, Recipient: to.SessionID, RecipientRole: to.Role,
			Timestamp: 1_770_000_000_000 + int64(i), Type: opencomms.TypeManual, Content: content,
			Status: opencomms.StatusDelivered, Correlation: opencomms.NewID(opencomms.PrefixCorrelation),
			DeliveredAt: 1_770_000_000_500 + int64(i), Attempts: 1, Method: opencomms.ModePull,
		}}
		s.Messages.Set(e.ID, e)
		s.DeliveredTo.Set(e.ID, []string{e.Recipient})
		s.Queues.Set(e.Recipient, nil)
		c.SeenContent.Set(opencomms.SeenKey(e.Sender, fmt.Sprint(content, i)), e.Timestamp)
	}
	data, err := s.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// BenchmarkCodec measures what a file costs as it grows: to read it, to write it
// with nothing changed, and to read it, change one message and write it. x-json is
// how many times longer encoding/json takes to read it without types and write it.
func BenchmarkCodec(b *testing.B) {
	for _, size := range []struct{ messages, channels, members int }{
		{100, 8, 8}, {500, 8, 8}, {2_000, 8, 2}, {2_000, 8, 8}, {2_000, 8, 32}, {2_000, 64, 32},
	} {
		data := bigState(b, size.messages, size.channels, size.members)
		name := fmt.Sprintf("messages=%d/channels=%d/members=%d", size.messages, size.channels, size.members)
		run := func(what string, fn func() error) time.Duration {
			var took time.Duration
			b.Run(name+"/"+what, func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					if err := fn(); err != nil {
						b.Fatal(err)
					}
				}
				took = b.Elapsed() / time.Duration(b.N)
				if generic := jsonTime[name]; generic > 0 {
					b.ReportMetric(float64(generic)/float64(took), "x-json")
				}
			})
			return took
		}
		jsonTime[name] = 0
		jsonTime[name] = run("json", func() error { return jsonRoundTrip(data) })
		run("decode", func() error {
			_, err := opencomms.Decode(data)
			return err
		})
		s, err := opencomms.Decode(data)
		if err != nil {
			b.Fatal(err)
		}
		run("encode", func() error {
			_, err := s.Encode()
			return err
		})
		run("edit", func() error { return editOne(data) })
	}
}

var jsonTime = map[string]time.Duration{}

func jsonRoundTrip(data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	_, err := json.MarshalIndent(v, "", "  ")
	return err
}

// editOne reads a file, changes one message and writes it.
func editOne(data []byte) error {
	s, err := opencomms.Decode(data)
	if err != nil {
		return err
	}
	for _, e := range s.Messages.All() {
		e.Attempts++
		break
	}
	_, err = s.Encode()
	return err
}
