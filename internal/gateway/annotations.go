package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// nginxPrefix is the prefix of the annotations of ingress-nginx.
const nginxPrefix = "nginx.ingress.kubernetes.io/"

// Reasons of notes, next to the Fates.
const (
	annotationUnknown = "AnnotationUnknown" // nobody knows it
	annotationInvalid = "AnnotationInvalid" // its value cannot be read
)

// defaultMaxBody is the bound of a request's body for Ingresses, as in ingress-nginx.
const defaultMaxBody = 1 << 20

// Annotations is what the annotations of ingress-nginx on one Ingress ask for. Other objects are named, not read.
type Annotations struct {
	// Filters lack what needs another object: BasicAuth, Headers and Mirror are separate.
	Filters     Filters
	Protocol    Protocol
	BackendTLS  *IngressBackendTLS // not nil: TLS to the backends
	TLSRedirect bool               // if the host has a certificate
	ForceTLS    bool
	FromToWWW   bool
	AppRoot     string
	Regex       bool // all paths are regular expressions
	Passthrough bool
	Aliases     []string
	Session     *Session
	HashBy      string
	Retry       *Retry
	Canary      *Canary // not nil: the Ingress is a canary
	BasicAuth   *IngressAuth
	ClientCAs   api.Name // a Secret; the zero value: clients need no certificate
	Headers     api.Name // a ConfigMap with headers of answers; the zero value: none
	Mirror      *IngressMirror

	ConnectTimeout, ReadTimeout, SendTimeout time.Duration

	// Closed says why all rules of the Ingress answer with 500: an annotation that keeps requests out cannot be obeyed.
	Closed string
	// Notes says which annotations are not obeyed word for word, sorted by annotation.
	Notes []AnnotationNote
}

// An AnnotationNote says what is not done, or not possible. Reason is a Fate, AnnotationUnknown or AnnotationInvalid.
type AnnotationNote struct{ Annotation, Reason, Text string }

// Needless reports whether nothing has to be done about it.
func (n AnnotationNote) Needless() bool { return n.Reason == string(AnnotationNeedless) }

// IngressBackendTLS is TLS to the backends of an Ingress.
type IngressBackendTLS struct {
	ServerName string // empty: SERVICE.NAMESPACE.svc
	Insecure   bool   // any certificate is accepted
	Secret     api.Name
}

// IngressAuth is basic authentication. Kind is auth-file (htpasswd lines in the key auth) or auth-map (a key a user).
type IngressAuth struct {
	Secret      api.Name
	Kind, Realm string
}

// An IngressMirror gets a copy of each request, at its own Path or at the request's.
type IngressMirror struct {
	Service api.Name
	Port    uint16
	Path    string
}

// ReadAnnotations reads the annotations of an Ingress. It is their only reader: the Compiler serves the result, and
// `fairway ingress migrate` prints it as objects of Gateway API.
func ReadAnnotations(o *Ingress) *Annotations {
	r := &annotationReading{o: o, Annotations: &Annotations{TLSRedirect: true, Filters: Filters{MaxBody: defaultMaxBody}}}
	for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
		if name, ours := strings.CutPrefix(key, nginxPrefix); ours {
			annotation{r, name, strings.TrimSpace(o.Annotations[key])}.read()
		}
	}
	r.readProxySSL()
	r.readAuth()
	r.readRedirects()
	r.readCORS()
	r.readAffinity()
	r.readCanary()
	slices.SortStableFunc(r.Notes, func(a, b AnnotationNote) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return r.Annotations
}

// note adds a note.
func (a *Annotations) note(annotation, reason, format string, args ...any) {
	a.Notes = append(a.Notes, AnnotationNote{annotation, reason, fmt.Sprintf(format, args...)})
}

// close makes all rules of the Ingress answer with 500, because an annotation that keeps requests out cannot be obeyed.
func (a *Annotations) close(annotation, reason, text string) {
	a.note(annotation, reason, "%s; requests get 500, because the annotation keeps requests out", text)
	a.Closed = cmp.Or(a.Closed, "annotation "+annotation+": "+text)
}

// An annotationReading is an Ingress while its annotations are read.
type annotationReading struct {
	*Annotations
	o *Ingress
}

// get returns the value of an annotation.
func (r *annotationReading) get(key string) string {
	return strings.TrimSpace(r.o.Annotations[nginxPrefix+key])
}

// at returns an annotation that is read together with others.
func (r *annotationReading) at(key string) annotation { return annotation{r, key, r.get(key)} }

// named reads "namespace/name" or "name", which is of the Ingress' namespace.
func (r *annotationReading) named(text string) api.Name {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return api.Name{Namespace: namespace, Name: name}
	}
	return api.Name{Namespace: r.o.Namespace, Name: text}
}

// An annotation is one annotation while it is read.
type annotation struct {
	*annotationReading
	key, value string // key without prefix
}

// invalid reports a value that cannot be read.
func (a annotation) invalid(advice string) {
	a.note(a.key, annotationInvalid, "%q cannot be read [%s]", api.Cut(a.value, 100), advice)
}

// shut closes the Ingress because of this annotation.
func (a annotation) shut(reason, text string) { a.close(a.key, reason, text) }

// read reads an annotation that needs no other one.
func (a annotation) read() {
	group := groupOf(a.key)
	switch {
	case group == nil:
		a.note(a.key, annotationUnknown, "it is not known%s", suggestion(a.key))
	case group.Fate == AnnotationClosing:
		a.shut(string(AnnotationUnsupported), group.Text)
	case group.Fate != AnnotationObeyed:
		a.note(a.key, string(group.Fate), "%s", group.Text)
	case annotationReaders[a.key] != nil:
		annotationReaders[a.key](a)
	}
}

func canonicalName(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
}

// annotationReaders has the annotations that are read alone. The others are read together, by ReadAnnotations.
var annotationReaders = map[string]func(annotation){
	"app-root": readAppRoot, "backend-protocol": readBackendProtocol,
	"from-to-www-redirect": func(a annotation) { a.readBool(&a.FromToWWW) },
	"ssl-redirect":         func(a annotation) { a.readBool(&a.TLSRedirect) },
	"force-ssl-redirect":   func(a annotation) { a.readBool(&a.ForceTLS) },
	"ssl-passthrough":      func(a annotation) { a.readBool(&a.Passthrough) },
	"use-regex":            func(a annotation) { a.readBool(&a.Regex) },
	"enable-access-log": func(a annotation) {
		var on bool
		a.readBool(&on)
		a.Filters.AccessLog = &on
	},
	"custom-headers":     func(a annotation) { a.Headers = a.named(a.value) },
	"x-forwarded-prefix": readForwardedPrefix,
	"rewrite-target":     readRewriteTarget, "upstream-vhost": readVhost, "server-alias": readAliases,
	"proxy-body-size":        readBodySize,
	"proxy-connect-timeout":  func(a annotation) { a.readSeconds(&a.ConnectTimeout) },
	"proxy-read-timeout":     func(a annotation) { a.readSeconds(&a.ReadTimeout) },
	"proxy-send-timeout":     func(a annotation) { a.readSeconds(&a.SendTimeout) },
	"whitelist-source-range": func(a annotation) { a.readPrefixes(&a.Filters.Allow) },
	"allowlist-source-range": func(a annotation) { a.readPrefixes(&a.Filters.Allow) },
	"denylist-source-range":  func(a annotation) { a.readPrefixes(&a.Filters.Deny) },

	"limit-rps": readLimits, "limit-rpm": readLimits, "limit-connections": readLimits,
	"proxy-next-upstream": readNextUpstream, "upstream-hash-by": readHashBy, "mirror-target": readMirror,
}
