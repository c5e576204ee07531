package kube

import (
	"bytes"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// caAge is the longest time between two reads of the CA file.
const caAge = 5 * time.Minute

// A caTransport trusts an API server if a CA in a file has signed the server's certificate. After an unknown
// certificate it reads the file again and repeats the request, so an agent need not restart when the cluster's CA is
// replaced. client-go's transport reads the file every five minutes only.
type caTransport struct {
	path string

	mu   sync.Mutex
	base http.RoundTripper
	cas  []byte    // the CAs that base trusts
	read time.Time // the time of the last read
}

func newCATransport(base http.RoundTripper, path string, cas []byte) *caTransport {
	return &caTransport{path: path, base: base, cas: cas, read: time.Now()}
}

// current returns the transport for a request. failed is the transport that just refused the API server's certificate;
// nil: none.
func (t *caTransport) current(failed http.RoundTripper) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base != failed && time.Since(t.read) < caAge {
		return t.base
	}
	t.read = time.Now()
	cas, err := os.ReadFile(t.path)
	if err != nil || bytes.Equal(cas, t.cas) {
		return t.base // keep the previous CAs
	}
	next, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cas}})
	if err != nil {
		return t.base
	}
	utilnet.CloseIdleConnectionsFor(t.base)
	t.base, t.cas = next, cas
	return next
}

// RoundTrip implements http.RoundTripper.
func (t *caTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.current(nil)
	answer, err := base.RoundTrip(r)
	if unknown := (x509.UnknownAuthorityError{}); !errors.As(err, &unknown) || r.Body != nil && r.GetBody == nil {
		return answer, err
	}
	next := t.current(base)
	if next == base {
		return answer, err
	}
	if r.GetBody != nil {
		body, failed := r.GetBody()
		if failed != nil {
			return answer, err
		}
		r = r.Clone(r.Context())
		r.Body = body
	}
	return next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *caTransport) WrappedRoundTripper() http.RoundTripper { return t.current(nil) }
