// Package tunnel carries many streams over one outbound WebSocket. Dial and
// Accept give a Session, which is a net.Listener of incoming api streams and a
// dialer of outgoing ones, so each side can run an http.Server and an
// http.Client on it. Keep holds a tunnel up through every kind of loss.
//
// It guarantees: a peer that is silent for an interval and a time-out is
// noticed whatever its socket says; a stalled write ends the session; one slow
// stream neither delays the others nor grows without bound; cancelling a stream
// reaches the far end; Close returns when every goroutine of the session has
// ended. It does not authenticate anybody, does not retry a request, and does
// not encrypt beyond the TLS of its URL.
//
// # Bounds
//
// Every queue has an end, and this is what happens there:
//
//	what waits                      bound                  beyond it
//	mux frames to be written        64 of 64 KiB           writers wait; WriteTimeout ends the session
//	frames beside a write under way one buffer of 64 KiB   the mux waits
//	unsent bytes in the kernel      64 KiB where it can    the next frame waits
//	unread bytes of a stream        Config.Window          its writer waits, nobody else
//	unread frames below 64 bytes    8,192 of a stream      it is reset: ResetFragments
//	streams opened, not answered    256                    Open waits, within its context
//	streams of the other side       MaxIncomingStreams     reset
//	streams that nobody accepts     PreambleTimeout        reset
//
// # Wire
//
// The dialer sends a WebSocket upgrade (RFC 6455, HTTP/1.1, ALPN http/1.1 when
// over TLS) offering the subprotocol "mesh-tunnel.v1"; a hub that does not speak
// it answers 400. A refusal is an ordinary HTTP answer with the body
// {"error":{"code":"…","message":"…"}} and perhaps Retry-After. Permessage
// compression is never negotiated.
//
// Every mux frame travels in one binary message; a text message is a protocol
// error. The mux is yamux (version 0, 12-byte headers) with the dialing side as
// client (odd stream ids): frames of at most 64 KiB, a window that starts at
// 256 KiB and grows to Config.Window while its reader keeps up, and 256 opened
// but unanswered streams at most. Its ping frames are the heartbeat.
//
// A stream starts with a preamble from the side that opened it, which has
// Config.PreambleTimeout to arrive:
//
//	byte 0    version, 1
//	byte 1    length of the kind, 1 to 80
//	byte 2…   the kind, ASCII
//
//	kind            meaning
//	api             an HTTP/1.1 connection to the other side's interface
//	service/<name>  a byte pipe to the local server that the other side calls
//	                <name>: 1 to 64 of A-Z a-z 0-9 . _ -
//	taken/<name>    the same, and the first byte from the other side, 1, says that
//	                the local server has taken the connection
//	goaway          no further streams, please: open ones may finish. No content
//
// A stream ends by FIN both ways or by RST, which carries a ResetCode. A piped
// service stream passes FIN on as a half-close and turns every error on one leg
// into an abort of the other.
//
// A session that is closed on purpose ends with a WebSocket close frame whose
// code says why; anything else is a loss:
//
//	1000  closed              ReasonNone
//	1002  protocol error      ReasonProtocol
//	1012  restarting          ReasonShutdown (1001 is understood as the same)
//	4001  superseded          ReasonSuperseded: a newer tunnel took the name
//	4002  revoked             ReasonRevoked: the credential is no longer good
//
// Codes, kinds and reset codes may be added within version 1; an unknown kind
// is reset and an unknown close code is a loss.
package tunnel
