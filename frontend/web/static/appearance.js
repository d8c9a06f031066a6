// Light or dark, before anything is painted: as the system has it, unless something else was chosen here.
"use strict";

(() => {
  const NAME = "pagewire.appearance";
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  let unkept = "system"; // what holds in a browser that keeps nothing for this page
  const chosen = () => {
    try {
      return localStorage.getItem(NAME) || "system";
    } catch {
      return unkept;
    }
  };
  const apply = () => {
    const choice = chosen();
    const isDark = choice === "dark" || (choice === "system" && systemIsDark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    document.dispatchEvent(new Event("appearance"));
  };
  systemIsDark.addEventListener("change", apply);
  window.appearance = {
    chosen,
    choose(choice) {
      try {
        localStorage.setItem(NAME, choice);
      } catch {
        unkept = choice;
      }
      apply();
    },
  };
  apply();
})();
