// Command stubllm runs the stand-in model server of package stubllm on a loopback
// address, for trying an agent by hand:
//
//	go run ./test/stubllm/cmd/stubllm -listen 127.0.0.1:4010
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"opencode-mesh/test/stubllm"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:4010", "address to listen on; port 0 takes a free one")
	flag.Parse()
	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stubllm:", err)
		os.Exit(1)
	}
	fmt.Printf("listening http://%s/v1\n", ln.Addr())
	srv := &http.Server{Handler: stubllm.New(), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, "stubllm:", srv.Serve(ln))
	os.Exit(1)
}
