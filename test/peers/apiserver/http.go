package apiserver

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	mediaJSON     = "application/json"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
)

// Serve answers on the listener until stop is called.
func (s *Server) Serve(l net.Listener) (stop func()) {
	srv := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // returns ErrServerClosed
	}()
	return func() {
		_ = srv.Close()
		<-done
	}
}

// ServeHTTP answers list, watch and get. It accepts events and drops them.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, resource, name := split(r.URL.Path)
	k := s.kinds[resource]
	switch {
	case resource == "events" && r.Method == http.MethodPost:
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
		return
	case k == nil || r.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	f, err := filterOf(r, namespace)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	media := mediaJSON
	if strings.Contains(r.Header.Get("Accept"), mediaProtobuf) {
		media = mediaProtobuf
	}
	switch {
	case name != "":
		s.get(w, k, namespace+"/"+name, media)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, k, f, media)
	default:
		s.list(w, k, f, media)
	}
}

// split parses a path, for example /apis/G/V/namespaces/NS/RESOURCE/NAME.
func split(path string) (namespace, resource, name string) {
	f := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2 // api/v1
	if f[0] == "apis" {
		skip = 3
	}
	f = f[min(skip, len(f)):]
	if len(f) > 2 && f[0] == "namespaces" {
		namespace, f = f[1], f[2:]
	}
	if len(f) > 0 {
		resource = f[0]
	}
	if len(f) > 1 {
		name = f[1]
	}
	return namespace, resource, name
}

func filterOf(r *http.Request, namespace string) (filter, error) {
	q := r.URL.Query()
	l, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return filter{}, err
	}
	f, err := fields.ParseSelector(q.Get("fieldSelector"))
	return filter{labels: l, fields: f, namespace: namespace}, err
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "not served by this small API server",
	})
}

func (s *Server) get(w http.ResponseWriter, k *kind, key, media string) {
	s.mu.Lock()
	it := k.objects[key]
	s.mu.Unlock()
	if it == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	respond(w, media)(it.in(k, media))
}

func (s *Server) list(w http.ResponseWriter, k *kind, f filter, media string) {
	l, err := k.list(s.snapshot(k, f))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	respond(w, media)(encode(l, k, media))
}

// respond returns a function that writes an answer, or an error.
func respond(w http.ResponseWriter, media string) func([]byte, error) {
	return func(data []byte, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", media)
		_, _ = w.Write(data)
	}
}

// watch streams changes until the client leaves.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k *kind, f filter, media string) {
	q := r.URL.Query()
	version, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	out := &stream{w: w, k: k, media: media}
	contentType := media
	if media == mediaProtobuf {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	if q.Get("sendInitialEvents") == "true" || version == 0 {
		var all []*item
		all, version = s.snapshot(k, f)
		for _, it := range all {
			out.send("ADDED", it)
		}
		if q.Get("sendInitialEvents") == "true" {
			out.send("BOOKMARK", k.bookmark(version))
		}
	}
	for out.err == nil {
		changes, now, grown := s.since(k, version)
		for _, c := range changes {
			if typ, it := c.typed(f); typ != "" {
				out.send(typ, it)
			}
		}
		version = now
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-grown:
		}
	}
}

// bookmark tells the client that it has got all initial events.
func (k *kind) bookmark(version int64) *item {
	o := k.empty()
	o.SetResourceVersion(strconv.FormatInt(version, 10))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return &item{Object: o, version: version}
}

// A stream writes watch events.
type stream struct {
	w     io.Writer
	k     *kind
	media string
	err   error // the error of the first event that could not be sent
}

func (s *stream) send(typ string, it *item) {
	if s.err != nil {
		return
	}
	raw, err := it.in(s.k, s.media)
	if err != nil {
		s.err = err
		return
	}
	if s.media == mediaJSON {
		_, s.err = fmt.Fprintf(s.w, `{"type":%q,"object":%s}`+"\n", typ, raw)
		return
	}
	frame, err := (&metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: raw}}).Marshal()
	if err != nil {
		s.err = err
		return
	}
	_, s.err = s.w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
}

// in returns the item in a format.
func (it *item) in(k *kind, media string) ([]byte, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if data := it.encoded[media]; data != nil {
		return data, nil
	}
	data, err := encode(it.Object, k, media)
	if err != nil {
		return nil, err
	}
	if it.encoded == nil {
		it.encoded = map[string][]byte{}
	}
	it.encoded[media] = data
	return data, nil
}

func encode(o runtime.Object, k *kind, media string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	if !ok {
		return nil, fmt.Errorf("encode %s: no serializer for %s", k.name, media)
	}
	data, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, k.gv), o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.name, err)
	}
	return data, nil
}
