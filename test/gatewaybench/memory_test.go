package gatewaybench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// BenchmarkConnections prints the memory that idle and slow connections of clients cost a candidate.
func BenchmarkConnections(b *testing.B) {
	const idle, slow = 10_000, 1_000
	w := benchWorld(b)
	for b.Loop() {
		for _, c := range []*candidate{startNginx(b, w), startCaddy(b, w), startOurs(b, w)} {
			open := make([]net.Conn, 0, idle+slow)
			add := func(n int, begin func(net.Conn) error) int64 {
				before := c.resident()
				for range n {
					k, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.http))
					if err == nil {
						open = append(open, k)
						err = begin(k)
					}
					if err != nil {
						b.Fatalf("%s, connection %d: %v", c.name, len(open), err)
					}
				}
				return (c.resident() - before) / int64(n)
			}
			each := add(idle, oneRequest)
			stuck := add(slow, func(k net.Conn) error {
				_, err := io.WriteString(k, "GET "+small+" HTTP/1.1\r\nHo")
				return err
			})
			b.Logf("%-22s %5d bytes for an idle connection, %5d for a slow one; resident %3d MB", c.name, each, stuck, c.resident()>>20)
			for _, k := range open {
				k.Close()
			}
		}
	}
	b.ReportMetric(0, "ns/op") // the time of everything together says nothing
}

// oneRequest sends a request and reads the answer.
func oneRequest(k net.Conn) error {
	if err := k.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(k, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", small, hostOf(5)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(k, 1024), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
