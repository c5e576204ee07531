package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// openTimeout bounds the opening of a tunnel to a pod.
const openTimeout = 15 * time.Second

// PodPorts opens connections to TCP ports of pods through the API server, as `kubectl port-forward` does. It needs the
// right to create pods/portforward. All connections of a pod share one WebSocket. Its methods may be called by any
// goroutine.
type PodPorts struct {
	cfg    *rest.Config
	client kubernetes.Interface

	mu      sync.Mutex
	tunnels map[api.Name]*podTunnel
}

// ConnectPodPorts makes a client. It sends nothing yet.
func ConnectPodPorts(c Connection) (*PodPorts, error) {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server at %s: %w", cfg.Host, text.OneLine(err))
	}
	return &PodPorts{cfg: cfg, client: client, tunnels: map[api.Name]*podTunnel{}}, nil
}

// A podTunnel is the WebSocket to a pod. open is closed when conn or err is set.
type podTunnel struct {
	open chan struct{}
	conn httpstream.Connection
	err  error
	id   atomic.Int64
}

// Dial opens a connection to a port of a pod. It returns before the pod has accepted the connection: PodConn.Refusal
// says whether it did.
func (p *PodPorts) Dial(ctx context.Context, pod api.Name, port uint16) (*PodConn, error) {
	t := p.tunnel(pod)
	select {
	case <-t.open:
	case <-ctx.Done():
		return nil, fmt.Errorf("open a tunnel to pod %s: %w", pod, ctx.Err())
	}
	if t.err != nil {
		return nil, fmt.Errorf("open a tunnel to pod %s: %w", pod, t.err)
	}
	conn, err := t.dial(port)
	if err != nil {
		p.forget(pod, t)
		return nil, fmt.Errorf("open a stream to port %d of pod %s: %w", port, pod, err)
	}
	return conn, nil
}

// Close ends all connections.
func (p *PodPorts) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pod, t := range p.tunnels {
		delete(p.tunnels, pod)
		go t.close()
	}
}

// tunnel returns the tunnel to a pod, which may not be open yet.
func (p *PodPorts) tunnel(pod api.Name) *podTunnel {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.tunnels[pod]; ok {
		return t
	}
	t := &podTunnel{open: make(chan struct{})}
	p.tunnels[pod] = t
	go func() {
		t.conn, t.err = p.upgrade(pod)
		close(t.open)
		if t.err == nil {
			<-t.conn.CloseChan()
		}
		p.forget(pod, t)
	}()
	return t
}

// forget makes the next connection to a pod open a new tunnel.
func (p *PodPorts) forget(pod api.Name, t *podTunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tunnels[pod] == t {
		delete(p.tunnels, pod)
	}
}

// upgrade opens the WebSocket. client-go's dialer has no context, but its request ends with the transport's timeout.
func (p *PodPorts) upgrade(pod api.Name) (httpstream.Connection, error) {
	u := p.client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	cfg := rest.CopyConfig(p.cfg)
	cfg.Timeout = openTimeout
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, cfg)
	if err != nil {
		return nil, text.OneLine(err)
	}
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, text.OneLine(err)
	}
	return conn, nil
}

func (t *podTunnel) close() {
	<-t.open
	if t.err == nil {
		_ = t.conn.Close()
	}
}

// dial makes the two streams of a connection: one for what the node says of it, one for its bytes.
func (t *podTunnel) dial(port uint16) (*PodConn, error) {
	h := http.Header{}
	h.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	h.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(t.id.Add(1), 10))
	h.Set(corev1.StreamType, corev1.StreamTypeError)
	said, err := t.conn.CreateStream(h)
	if err != nil {
		return nil, text.OneLine(err)
	}
	_ = said.Close() // we write nothing to it
	h.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := t.conn.CreateStream(h)
	if err != nil {
		_ = said.Reset()
		t.conn.RemoveStreams(said)
		return nil, text.OneLine(err)
	}
	c := &PodConn{tunnel: t, data: data, said: said, ended: make(chan struct{})}
	go c.listen()
	return c, nil
}

// A PodConn is a connection to a port of a pod. Reads, writes and Close may be concurrent.
type PodConn struct {
	tunnel     *podTunnel
	data, said httpstream.Stream
	ended      chan struct{}
	refusal    error
	once       sync.Once
}

// maxRefusal bounds what a node may say of a connection.
const maxRefusal = 4096

// listen reads what the node says of the connection. It says something only if the connection failed.
func (c *PodConn) listen() {
	what, err := io.ReadAll(io.LimitReader(c.said, maxRefusal))
	switch {
	case len(what) > 0:
		c.refusal = errors.New(strings.Join(strings.Fields(string(what)), " "))
	case err != nil:
		c.refusal = text.OneLine(err)
	}
	close(c.ended)
}

// Read is a part of io.Reader.
func (c *PodConn) Read(p []byte) (int, error) { return c.data.Read(p) }

// Write is a part of io.Writer.
func (c *PodConn) Write(p []byte) (int, error) { return c.data.Write(p) }

// CloseWrite tells the pod that nothing more comes.
func (c *PodConn) CloseWrite() error { return c.data.Close() }

// Refusal returns why the connection failed: what the node said of it, or the end of the tunnel; nil: it ended as the
// pod wanted. Call it when Read has ended. It waits for the
// node's words, at most until ctx ends.
func (c *PodConn) Refusal(ctx context.Context) error {
	_ = c.data.Reset() // bytes that nobody reads would hold back the node's words
	select {
	case <-c.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.refusal != nil {
		return c.refusal
	}
	select {
	case <-c.tunnel.conn.CloseChan(): // it is closed before its streams end
		return errTunnelEnded
	default:
		return nil
	}
}

// errTunnelEnded: the pod, its node or the API server ended the WebSocket.
var errTunnelEnded = errors.New("the tunnel to the pod has ended")

// Close ends the connection.
func (c *PodConn) Close() error {
	c.once.Do(func() {
		_ = c.data.Reset()
		_ = c.said.Reset()
		c.tunnel.conn.RemoveStreams(c.data, c.said)
	})
	return nil
}

// Unreached reports whether an error of Dial or Refusal proves that nothing reached a program in the pod. These are the
// words of the API server, the kubelet, containerd and CRI-O for a pod that is gone and for a port where nothing listens.
func Unreached(err error) bool {
	if err == nil {
		return false
	}
	for _, words := range []string{"connection refused", "failed to connect to localhost", "not found", "does not have a host assigned",
		"pod is not running", "is not running", "failed to open network namespace", "no such file or directory"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}
