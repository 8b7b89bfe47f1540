// Search from files. The theme searches in a Worker, and browsers start none for pages
// that are opened as files. Here a hidden frame takes the worker's place: its script
// runs in it, and the two exchange messages as a page and a worker do.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((loaded) => {
        frame.onload = () => {
          // The worker calls this for its replies.
          frame.contentWindow.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = url;
          script.onload = () => loaded(frame.contentWindow);
          frame.contentDocument.body.append(script);
        };
      });
      frame.srcdoc = "<body></body>";
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((worker) =>
        worker.dispatchEvent(new MessageEvent("message", { data })),
      );
    }
  };
}
