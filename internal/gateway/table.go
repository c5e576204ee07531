package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Port is a port at which the gateway's process listens.
type Port struct {
	Number   uint16
	Proto    api.Proto
	TLS      bool   // the connection begins with a TLS handshake
	HTTP     bool   // requests follow, after the handshake if TLS is set
	Owner    Ref    // the Gateway; the zero value is the Ingresses' pair of ports
	External uint16 // the port that clients see, for redirects
}

// A Request is an engine's view of a request. Methods return strings that are valid until the request ends.
type Request interface {
	Method() string
	// Host is the request's host in lower case, without port and without a final dot.
	Host() string
	// Path is the path in the form of Normalise.
	Path() string
	// Header returns the value of a header, several lines joined with ",". The name is canonical (http.CanonicalHeaderKey).
	Header(name string) (value string, ok bool)
	// Query returns the first value of a query parameter, decoded.
	Query(name string) (value string, ok bool)
	// ServerName is the name of the TLS handshake in lower case, or empty.
	ServerName() string
	// Client is the peer's address, after the PROXY protocol and trusted proxies.
	Client() netip.Addr
}

// An Outcome says what happens to a request.
type Outcome uint8

// The outcomes.
const (
	Serve       Outcome = iota // by the Rule
	NoListener                 // 404: no listener of the port has the host
	NoRoute                    // 404: no rule matches
	Misdirected                // 421: the handshake's name belongs to another listener than the host
)

// A Decision is the fate of a request.
type Decision struct {
	Outcome  Outcome
	Listener *Listener // nil for NoListener
	Rule     *Rule     // nil unless Serve
	// Captures are the groups of the path's regular expression, for rewrites of an Ingress; nil without one.
	Captures []string
	// Prefix is the length of the matched prefix of the path, for ReplacePrefixMatch.
	Prefix int
}

// A Listener is a listener of a Gateway or a ListenerSet as it is served.
type Listener struct {
	Owner    Ref // Gateway or ListenerSet
	Name     string
	Hostname string
	Port     uint16 // that clients see
}

// A Rule is a rule of a route as it is served. It is immutable, and the same pointer while its meaning stays, so an engine may
// keep state (limits, sessions) by Key.
type Rule struct {
	Route Ref
	Name  string // of the rule; may be empty
	Index int    // of the rule in its route
	GRPC  bool   // answers that a gateway makes itself are gRPC statuses
	// Filters come before the backend is chosen.
	Filters  Filters
	Backends []Backend // may be empty: 500, or a redirect
	// Timeout bounds the whole request, BackendTimeout each attempt; 0: no bound.
	Timeout, BackendTimeout time.Duration
	// ConnectTimeout, ReadTimeout and SendTimeout bound steps of one attempt; 0: the engine's default.
	ConnectTimeout, ReadTimeout, SendTimeout time.Duration
	Retry                                    *Retry
	Session                                  *Session
	HashBy                                   string // upstream-hash-by: a variable of nginx; empty: none
}

// A Backend is one backend of a Rule. Weights are relative; a Backend of weight 0 gets nothing.
type Backend struct {
	Service api.PortName // the Service and its port's name
	Port    uint16       // the Service's port
	Weight  uint32
	// Refused: the reference is not valid, and the Backend's share of requests is answered with 500.
	Refused  string
	Protocol Protocol
	TLS      *BackendTLS // not nil: TLS to the endpoints
	Filters  Filters     // of this Backend alone
}

// A Protocol is what a gateway speaks to an endpoint.
type Protocol uint8

// The protocols.
const (
	HTTP1 Protocol = iota
	H2C            // HTTP/2 without negotiation, also for gRPC
	WebSocket
)

// BackendTLS is TLS to an endpoint.
type BackendTLS struct {
	ServerName  string
	SANs        []SAN
	Roots       *x509.CertPool // nil: the system's
	Insecure    bool           // proxy-ssl-verify off: as nginx does, any certificate is accepted
	Certificate *tls.Certificate
	ALPN        []string
}

// Filters is everything that a rule or a backend does to requests and answers. The zero value does nothing. An engine applies
// the fields in this order.
type Filters struct {
	Allow, Deny     []netip.Prefix // clients; Allow empty: all
	Redirect        *Redirect
	CORS            *CORS
	Limits          *Limits
	BasicAuth       *BasicAuth
	ForwardAuth     *ForwardAuth
	MaxBody         int64 // bytes; 0: no bound
	RequestHeaders  *HeaderChange
	Rewrite         *Rewrite
	Mirrors         []Mirror
	ResponseHeaders *HeaderChange
	AccessLog       *bool // nil: the process's setting
}

// A HeaderChange changes headers: first Set, then Add, then Remove. Names are canonical.
type HeaderChange struct {
	Set, Add []Header
	Remove   []string
}

// A Header is a header line.
type Header struct{ Name, Value string }

// A Redirect answers a request with another address. Empty fields keep the request's.
type Redirect struct {
	Scheme, Host string
	Port         uint16 // 0: the scheme's if Scheme is set, otherwise the listener's
	Path         *PathChange
	Code         int // 0: 302
	// URL, for an Ingress, is the whole target; $1 and $request_uri are replaced.
	URL string
	// OnlyHTTP: requests over TLS pass (ssl-redirect).
	OnlyHTTP bool
	// OnlyPath: only requests for exactly this path are redirected (app-root); empty: all.
	OnlyPath string
}

// A Rewrite changes the address of the request to the backend.
type Rewrite struct {
	Host string // empty: keep
	Path *PathChange
	// Target is an Ingress' rewrite-target: the whole path, with $1 to $9; empty: keep.
	Target string
}

// A PathChange replaces the path or its matched prefix. Full and Prefix exclude each other.
type PathChange struct {
	Full      string
	Prefix    string
	HasPrefix bool // Prefix counts, also if it is empty
}

// A Mirror sends a copy to a backend and ignores the answer. All: Numerator 1 of Denominator 1.
type Mirror struct {
	Backend                Backend
	Numerator, Denominator uint32
	Path                   string // mirror-target's own path, or empty
}

// CORS answers preflight requests and marks answers.
type CORS struct {
	Origins          []string // exact, with one "*" inside, or "*"
	Methods, Headers []string // "*": all
	Expose           []string
	Credentials      bool
	MaxAge           time.Duration // 0: 5 s
}

// Limits bound a client's requests on one rule, in one process.
type Limits struct {
	PerSecond   float64 // 0: none
	Burst       int
	Connections int // 0: none
	Exempt      []netip.Prefix
	Code        int // 0: 503, as nginx
}

// BasicAuth asks for a name and a password.
type BasicAuth struct {
	Realm string
	Users map[string]string // name: hash as htpasswd writes it (bcrypt, apr1, SHA)
}

// ForwardAuth asks another server first, and refuses if it does not answer.
type ForwardAuth struct {
	URL, Method, SignIn string
	Headers             []string // of its answer, for the backend
	Cache               time.Duration
}

// Retry is when a request is sent again, to another endpoint.
type Retry struct {
	Codes    []int
	Attempts int // 0: 1
	Backoff  time.Duration
	// ConnectOnly: only if nothing was sent. It is the default of all rules.
	ConnectOnly bool
	// Unsafe: methods that are not idempotent, too.
	Unsafe bool
}

// Session keeps a client at its endpoint.
type Session struct {
	Header   bool // a header in place of a cookie
	Name     string
	Lifetime time.Duration // 0: until the browser ends
	Idle     time.Duration
	Path     string
	SameSite string
	Secure   bool
	Balanced bool // affinity-mode balanced: move clients when endpoints are added
}

// A Handshake says how a TLS connection begins.
type Handshake struct {
	Listener *Listener
	// Passthrough: the connection goes on to these backends as it is.
	Passthrough []Backend
	// Forward: the decrypted stream goes to these backends (a TLSRoute of mode Terminate).
	Forward      []Backend
	Certificates []*tls.Certificate
	ClientCAs    *x509.CertPool // nil: clients are not asked
	ClientAny    bool           // AllowInsecureFallback
}

// A Stream says where a TCP connection or a UDP flow goes.
type Stream struct {
	Route    Ref
	Backends []Backend
}
