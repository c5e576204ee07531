package apiserver

import (
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func svc(name, ip string, labels map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
}

// TestClient: a real client, in both formats, sees what the store holds and how it
// changes, through selectors.
func TestClient(t *testing.T) {
	for _, media := range []string{mediaJSON, mediaProtobuf} {
		t.Run(media, func(t *testing.T) {
			s := New()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Serve(l)()
			s.Put(svc("a", "10.96.0.1", nil))
			s.Put(svc("headless", "None", nil))
			cfg := &rest.Config{Host: "http://" + l.Addr().String()}
			cfg.ContentType, cfg.AcceptContentTypes = media, media
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				t.Fatal(err)
			}
			opts := metav1.ListOptions{LabelSelector: "!other", FieldSelector: "spec.clusterIP!=None"}
			list, err := client.CoreV1().Services("").List(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 1 || list.Items[0].Name != "a" || list.Items[0].Spec.ClusterIP != "10.96.0.1" {
				t.Fatalf("list: %v", list.Items)
			}
			opts.ResourceVersion = list.ResourceVersion
			w, err := client.CoreV1().Services("").Watch(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			s.Put(svc("b", "10.96.0.2", nil))
			s.Put(svc("a", "10.96.0.3", nil))
			s.Put(svc("a", "10.96.0.3", map[string]string{"other": "x"}))
			s.Put(svc("headless", "None", map[string]string{"x": "y"}))
			s.Delete(svc("b", "", nil))
			for _, want := range []struct {
				typ      watch.EventType
				name, ip string
			}{
				{watch.Added, "b", "10.96.0.2"}, {watch.Modified, "a", "10.96.0.3"},
				{watch.Deleted, "a", "10.96.0.3"}, {watch.Deleted, "b", "10.96.0.2"},
			} {
				got := <-w.ResultChan()
				o, ok := got.Object.(*corev1.Service)
				if !ok || got.Type != want.typ || o.Name != want.name || o.Spec.ClusterIP != want.ip {
					t.Fatalf("got %v %v, want %v", got.Type, got.Object, want)
				}
			}
		})
	}
}
