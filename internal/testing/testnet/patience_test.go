package testnet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPatience: a client process or its whole machine stops for longer than its patience. It then takes the answer that
// arrived meanwhile. A client that was running reports a silent server.
func TestPatience(t *testing.T) {
	const patience = 300 * time.Millisecond
	ways := map[string]func(*Namespace, netip.AddrPort) Answer{
		"ask": func(n *Namespace, to netip.AddrPort) Answer { return n.Ask("udp", to, patience) },
		"ask many": func(n *Namespace, to netip.AddrPort) Answer {
			return n.AskMany([]Question{{"udp", to, patience}})[0]
		},
	}
	if name, to, ok := strings.Cut(os.Getenv("FAIRWAY_PATIENT_CLIENT"), "@"); ok { // this process is a client
		fmt.Println(ways[name](OpenNamespace(t, "client", "/proc/self/ns/net"), netip.MustParseAddrPort(to)))
		os.Exit(0)
	}
	NeedRoot(t, "enters a network namespace")
	for name := range ways {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, answers), func(t *testing.T) {
				t.Parallel()
				testStopped(t, name, 3*patience, answers)
			})
		}
	}
}

// testStopped stops a client for some time after its request. During the stop it gets an answer or not.
func testStopped(t *testing.T, name string, still time.Duration, answers bool) {
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client := exec.Command(os.Args[0], "-test.run=^TestPatience$")
	client.Env = append(os.Environ(), fmt.Sprintf("FAIRWAY_PATIENT_CLIENT=%s@%v", name, server.LocalAddr()))
	var out bytes.Buffer
	client.Stdout, client.Stderr = &out, &out
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer client.Process.Kill()
	if err := server.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, from, err := server.ReadFromUDP(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(still)
	want := Dropped.String()
	if answers {
		answer := "server 127.0.0.1:7 saw 127.0.0.1:8\n"
		want = parseAnswer(answer).String()
		if _, err := server.WriteToUDP([]byte(answer), from); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(); err != nil || strings.TrimSpace(out.String()) != want {
		t.Errorf("a client that stood still says %q (%v), want %q", &out, err, want)
	}
}
