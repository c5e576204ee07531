package kube

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
)

// TestDeadConnection: a stream ends if its connection delivers no data any more, even if no side closes the connection.
func TestDeadConnection(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "an event")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	way := newDeafWay(t, s.Listener.Addr().String())
	account := t.TempDir()
	put(t, filepath.Join(account, "ca.crt"), (&apiServer{Server: s}).ca())
	put(t, filepath.Join(account, "token"), "good")
	if err := noticeDeadConnections(); err != nil {
		t.Fatal(err)
	}
	cfg, err := Connection{Master: "https://" + way.Addr().String()}.restConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	client := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg))
	stream, err := client.Discovery().RESTClient().Get().AbsPath("/watch").Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	event := make([]byte, len("an event"))
	if _, err := io.ReadFull(stream, event); err != nil {
		t.Fatal(err)
	}
	way.fallSilent()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := stream.Read(event); err == nil {
			t.Error("something came over a silent connection")
		}
	}()
	waitFor(t, ended, "the end of the stream")
}

// A deafWay forwards bytes between its clients and a server until it falls silent. Then connections stay open without
// data.
type deafWay struct {
	net.Listener
	mu     sync.Mutex
	silent bool
}

func newDeafWay(t *testing.T, server string) *deafWay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &deafWay{Listener: l}
	var conns []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", server)
			if err != nil {
				t.Error(err)
				return
			}
			conns = append(conns, client, back)
			all.Go(func() { w.pass(client, back) })
			all.Go(func() { w.pass(back, client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.fallSilent()
		for _, c := range conns {
			c.Close()
		}
		all.Wait()
	})
	return w
}

func (w *deafWay) fallSilent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = true
}

// pass forwards the bytes of one connection to the other.
func (w *deafWay) pass(from, to net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		silent := w.silent
		w.mu.Unlock()
		if !silent {
			_, _ = to.Write(buf[:n])
		}
	}
}

// TestNoticeDeadConnections: a dead connection is noticed after 15 s, or after the user's setting.
func TestNoticeDeadConnections(t *testing.T) {
	const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
	t.Setenv(idle, "") // so that the test's end restores it
	t.Setenv(ping, "7")
	os.Unsetenv(idle)
	if err := noticeDeadConnections(); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(idle) != "10" || os.Getenv(ping) != "7" {
		t.Errorf("%s=%s, %s=%s; want 10 and the user's 7", idle, os.Getenv(idle), ping, os.Getenv(ping))
	}
}
