package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

const (
	every   = 15 * time.Second // as metrics-server does
	timeout = 10 * time.Second
	port    = "10250" // the port of kubelets
)

// A Server collects the resource usage of a cluster's nodes from their kubelets. As a Handler it serves the API. The
// kubelets must accept the client's certificate.
type Server struct {
	http.Handler
	log     *slog.Logger
	client  kubernetes.Interface
	kubelet http.RoundTripper

	mu    sync.Mutex
	nodes map[string]*history
}

// New makes a server for a cluster. It authenticates to kubelets with the certificate in config.
func New(log *slog.Logger, config *rest.Config) (*Server, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	asked, err := config.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("make client of kubelets: %w", err)
	}
	kubelet, err := transport.New(asked)
	if err != nil {
		return nil, fmt.Errorf("make client of kubelets: %w", err)
	}
	s := &Server{log: log, client: client, kubelet: kubelet, nodes: map[string]*history{}}
	s.Handler = s.handler()
	return s, nil
}

// Collect scrapes the kubelets periodically until ctx is done.
func (s *Server) Collect(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := s.scrape(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("some nodes have no metrics", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// scrape asks every kubelet once. It forgets the nodes that no longer exist.
func (s *Server) scrape(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	readings, errs := make([]reading, len(nodes.Items)), make([]error, len(nodes.Items))
	var all sync.WaitGroup
	for i, n := range nodes.Items {
		all.Go(func() { readings[i], errs[i] = s.ask(ctx, n) })
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[string]*history{}
	for i, n := range nodes.Items {
		h := s.nodes[n.Name]
		if h == nil {
			h = &history{}
		}
		if errs[i] != nil {
			h = &history{} // the node's usage is unknown now
		} else {
			h.add(readings[i])
		}
		there[n.Name] = h
	}
	s.nodes = there
	return errors.Join(errs...)
}

// ask requests the metrics of one kubelet.
func (s *Server) ask(ctx context.Context, n corev1.Node) (reading, error) {
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(a.Address, port)+"/metrics/resource", nil)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet of %s: %w", n.Name, err)
		}
		answer, err := s.kubelet.RoundTrip(request)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet of %s: %w", n.Name, err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("ask the kubelet of %s: %s", n.Name, answer.Status)
		}
		return read(answer.Body)
	}
	return nil, fmt.Errorf("%s has no address", n.Name)
}

// usage returns the usage of a container, or of the node if w is zero.
func (s *Server) usage(node string, w what) (Usage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.nodes[node]
	if h == nil {
		return Usage{}, false
	}
	return h.usage(w)
}

// write answers with an object.
func write(w http.ResponseWriter, status int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object) // an error means that the client is gone
}
